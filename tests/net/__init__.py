import fedhp.cluster  # noqa: F401  # before a test imports gRPC, which reads its settings once
