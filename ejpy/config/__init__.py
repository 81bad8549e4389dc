"""What a user configures.

    application.yml ──spring──┐
                           jobs.yml ──file──► JobConfig ──document──► `config` node of the registry (ElasticJob's layout)
                                                 ▲                        │
                                                 └────────document────────┘

`model` is the one place that knows a job's keys, their types, ranges and defaults. `file` reads the worker's YAML file
into it and reports everything that is wrong at once, with what `job_checks` finds wrong with the things that it names;
`spring` makes such a file of one of ElasticJob's Spring Boot starter; `document` translates to and from what ElasticJob keeps
in the registry. Nothing here talks to a registry, and no YAML ever makes an object of anything but texts (`yaml_tree`).
"""
