# Stands in for the official image of nginx, which has its temporary files in /var/cache/nginx.
FROM docker.io/library/debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends nginx-light \
    && rm -r /etc/nginx/sites-enabled/default /var/lib/nginx && ln -s /var/cache/nginx /var/lib/nginx \
    && ln -sf /dev/stdout /var/log/nginx/access.log && ln -sf /dev/stderr /var/log/nginx/error.log
ENTRYPOINT ["nginx", "-g", "daemon off;"]
