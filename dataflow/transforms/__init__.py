"""What happens to datapoints on the way."""
