#!/bin/sh
# Make the secrets of the compose stack, and a certificate for localhost that signs itself. Existing ones stay.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
cd secrets
random() { openssl rand -hex 32; }
[ -s pepper ] || random >pepper
[ -s database_password ] || random >database_password
[ -s database_url ] || echo "postgresql://tenora:$(cat database_password)@postgres/tenora" >database_url
if [ ! -s s3.env ]; then
    name="$(openssl rand -hex 10)"
    secret="$(random)"
    printf 'ROOT_ACCESS_KEY=%s\nROOT_SECRET_KEY=%s\n' "$name" "$secret" >s3.env
    printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$name" "$secret" >s3_credentials
fi
if [ ! -s tls_key.pem ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=localhost \
        -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' -keyout tls_key.pem -out tls_certificate.pem 2>/dev/null
fi
# Prometheus's key is made later: tenora keys create prometheus --platform --scope metrics
[ -e metrics_key ] || : >metrics_key
# Compose mounts these files with their owners, and the processes in the containers are other users. The folder keeps
# other users of this machine out.
chmod 644 ./*
