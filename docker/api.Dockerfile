# REST API and dashboard. The compiler's heavy parts (TVM, zig) are not in this image: a model is bytes to it.
FROM node:20-bookworm-slim AS charts
WORKDIR /dashboard
COPY service/dashboard/package.json service/dashboard/package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund

FROM python:3.11-slim-bookworm AS manual
WORKDIR /tree
COPY . .
RUN pip install --no-cache-dir -c constraints.txt -e ".[docs]" && python -m scripts.manual /site

FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE THIRD_PARTY.md ./
COPY compiler compiler
COPY device_agents device_agents
COPY docker docker
COPY migrations migrations
COPY pockfarm pockfarm
COPY service service
COPY workers workers
COPY --from=manual /site service/dashboard/manual/site
COPY --from=charts /dashboard/node_modules service/dashboard/node_modules
COPY alembic.ini ./
RUN pip install -c constraints.txt -e ".[service]" \
    && useradd --system --create-home pockfarm \
    && install -d -o pockfarm -g pockfarm -m 0700 /var/lib/pockfarm /var/tmp/pockfarm /run/pockfarm /backups
USER pockfarm
ENV POCKFARM_ALIVE_FILE=/run/pockfarm/alive
EXPOSE 8000
CMD ["python", "docker/watched.py", "/run/pockfarm/alive", "uvicorn", "service.app:served", "--factory", "--host", "0.0.0.0", "--port", "8000", "--proxy-headers", "--no-access-log"]
