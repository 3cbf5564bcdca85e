"""The generator: from `spec.yaml` and the stages to self-contained kernel modules."""
