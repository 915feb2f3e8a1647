"""Dense matrix products that need fewer multiplications: ``matmul``, its plans, and the schemes behind it."""
