# Stands in for the official image of PostgreSQL, which no registry gives to these tests.
FROM docker.io/library/debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends postgresql-15
COPY postgres.sh /postgres.sh
ENTRYPOINT ["sh", "/postgres.sh"]
