"""What a job will probably cost, and when it is done. Pure, but for rates.py."""
