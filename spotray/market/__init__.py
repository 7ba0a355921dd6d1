"""What is for sale: markets, prices and availability traces. Pure: no network, no ray, no torch."""
