"""Ray clusters: draining nodes, and what is known of them."""
