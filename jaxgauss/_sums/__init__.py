"""The sums that users call: sums, logarithms and means; sharded, streamed and sketched."""
