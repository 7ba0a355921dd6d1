"""Jobs in virtual time: the same policies as on a cluster, on real or made-up traces."""
