"""A cloud on this machine: EC2's calls answered by moto, its instances by namespaces of Linux.

`Cloud` (cloud.py) is what tests use. It starts `rig.py`, process 1 of namespaces of its own,
with the API (`ec2.py`), the metadata service (`imds.py`) and the machines (`machines.py`,
`boot.sh`) inside. Nothing of it has a name outside of them, so any number of clouds can run
at once, and the kernel removes all of one when its process 1 ends, however that comes about.
"""
