"""Everything that touches the private parts of Ray's autoscaler, in one folder. For Ray 2.60.

Ray has a public way in for a node provider (``provider: {type: external}``) but none to
choose the market of one launch, so ours stand on Ray's own providers for the clouds, whose
tags, security groups, keys and command runners they keep. One file a cloud: Ray imports
each cloud's SDK at module level. ``tests/cluster/ray_autoscaler`` fails when a new Ray
changes what these files lean on.
"""
