# Celery worker with the whole compiler. The linker's C library is built into the image, so the first compile is quick.
FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --system --create-home pockfarm \
    && install -d -o pockfarm -g pockfarm -m 0700 /var/lib/pockfarm /var/lib/pockfarm/tmp /var/cache/pockfarm
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE THIRD_PARTY.md ./
COPY compiler compiler
COPY device_agents device_agents
COPY docker/healthy.py docker/watched.py docker/
COPY migrations migrations
COPY pockfarm pockfarm
COPY service service
COPY workers workers
COPY alembic.ini ./
RUN pip install -c constraints.txt -e ".[worker]"
USER pockfarm
# A new volume is filled with what the image has there, so the first compile finds the linker warm.
ENV POCKFARM_CACHE_DIR=/var/cache/pockfarm
RUN python -m compiler.codegen.linking.shared
CMD ["python", "docker/watched.py", "/var/lib/pockfarm/worker-alive.{host}", "celery", "--app", "workers.app", "worker", "--concurrency", "1", "--without-mingle", "--without-gossip"]
