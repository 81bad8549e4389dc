"""Jobs to try ejpy with, and to start one's own from. The repository's `conf/jobs.yml` runs them."""
