"""The worker's configuration file, ejpy's own and that of ElasticJob's Spring Boot starter, to `JobConfig`s."""
