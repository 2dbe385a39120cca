"""What the cluster can still supply: Ray's resources, and in Kubernetes its GPU nodes."""
