"""Whether the farm lives and is fit for work (`/healthz`, `/readyz`), and its figures (`/metrics`)."""
