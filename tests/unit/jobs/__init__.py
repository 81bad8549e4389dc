"""ElasticJob's kinds of job."""
