"""One line from a cluster's YAML and a script to the job's end: `spotray launch`."""
