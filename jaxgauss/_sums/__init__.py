"""The sums that users call, and their derivatives: sums, logarithms and means; sharded, streamed and sketched."""
