"""File formats: serializers that save and load flows, and a cache on disk."""
