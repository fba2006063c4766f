# Stands in for the S3 server of the compose stack: moto's, in memory.
FROM docker.io/library/debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-venv \
    && python3 -m venv /moto && /moto/bin/pip install --no-cache-dir "moto[server]==5.2.5"
ENTRYPOINT ["/moto/bin/moto_server", "-H", "0.0.0.0", "-p", "7070"]
