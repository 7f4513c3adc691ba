#!/bin/sh
# Make the secrets of compose.yaml, each once: files in ./secrets that only their owner and the containers' user read.
# Needs openssl and mosquitto_passwd. The HTTP node's token is the query unit's to make: docs/deploy.md.
set -eu
umask 027
mkdir -p secrets
for name in database.password unit.password mqtt-node.token; do
    [ -s "secrets/$name" ] || openssl rand -hex 32 >"secrets/$name"
done
[ -s secrets/http-node.token ] || echo "not-made-yet" >secrets/http-node.token
printf 'database:5432:sojourn:sojourn:%s\n' "$(cat secrets/database.password)" >secrets/pgpass
: >secrets/mosquitto.passwd
mosquitto_passwd -b secrets/mosquitto.passwd unit "$(cat secrets/unit.password)"
mosquitto_passwd -b secrets/mosquitto.passwd mqtt-node "$(cat secrets/mqtt-node.token)"
# libpq takes a password file of its user alone.
chmod 600 secrets/pgpass
if [ "$(id -u)" -eq 0 ]; then
    chown -R 10001:10001 secrets
    chown 1883:1883 secrets/mosquitto.passwd
else
    echo "as root this also gives the files to the containers' user (10001); else do: chown -R 10001 secrets" >&2
fi
