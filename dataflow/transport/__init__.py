"""How datapoints go from process to process: channels, codecs, shared memory, msgpack."""
