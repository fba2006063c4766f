#!/bin/sh
# nginx accepts the configuration of the compose stack, with a certificate of secrets.sh.
set -eu
folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
cp -r deploy/container/secrets.sh "$folder"
sh "$folder/secrets.sh"
sed -e "s|/run/secrets/tls_certificate;|$folder/secrets/tls_certificate.pem;|" \
    -e "s|/run/secrets/tls_key;|$folder/secrets/tls_key.pem;|" deploy/nginx/tls.conf >"$folder/tls.conf"
cp deploy/container/upstream.conf "$folder/upstream.conf"
printf 'pid %s/pid; error_log stderr; events {} http { access_log off; include %s/upstream.conf; include %s/tls.conf; }\n' \
    "$folder" "$folder" "$folder" >"$folder/nginx.conf"
nginx -q -t -p "$folder" -c "$folder/nginx.conf"
