# An agent for the machine that runs the container. On a board, install the package itself: docs/agent.md.
FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE THIRD_PARTY.md ./
COPY device_agents device_agents
COPY docker/agent.sh docker/healthy.py docker/watched.py docker/
RUN pip install -c constraints.txt -e ".[agent]" \
    && useradd --system --create-home pockfarm \
    && install -d -o pockfarm -g pockfarm -m 0700 /var/lib/pockfarm-agent
USER pockfarm
CMD ["python", "docker/watched.py", "/var/lib/pockfarm-agent/alive", "sh", "docker/agent.sh"]
