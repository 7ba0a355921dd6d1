"""The process on every node that hears the notice of the cloud and drains the node in Ray."""
