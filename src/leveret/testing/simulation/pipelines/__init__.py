"""The pipeline's processes in a simulation: the product's own code, over a Spark that runs its tasks in the loop."""
