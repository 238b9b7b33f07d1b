"""What every engine shares of a round: the hand-overs, the aggregation, the traffic, the state between rounds."""
