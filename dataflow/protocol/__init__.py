"""What a node is: passes, states, seeds, datapoints, and how nodes are compared."""
