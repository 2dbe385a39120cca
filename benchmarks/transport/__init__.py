"""What a channel from an engine replica to an ingress replica costs per token. See README.md."""
