#!/bin/sh
# As the official image: the first start makes the user and the database of the variables.
set -eu
bin=/usr/lib/postgresql/15/bin
data=/var/lib/postgresql/data
as() { su postgres -s /bin/sh -c "$1"; }
install -d -o postgres -g postgres -m 700 "$data"
install -d -o postgres -g postgres /run/postgresql
if [ ! -s "$data/PG_VERSION" ]; then
    cp "$POSTGRES_PASSWORD_FILE" /tmp/password
    chown postgres /tmp/password
    as "$bin/initdb -D $data -U $POSTGRES_USER -E UTF8 --pwfile=/tmp/password -A scram-sha-256 >/dev/null"
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | as "$bin/postgres --single -D $data postgres >/dev/null"
fi
exec su postgres -s /bin/sh -c "exec $bin/postgres -D $data -h '*'"
