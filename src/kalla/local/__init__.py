"""The servers of one machine: what `kalla up` and the tests start, watch and stop."""
