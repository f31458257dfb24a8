#!/bin/sh
# SeaweedFS as one process with an S3 door; the identity comes from the environment, not from a file in the repository.
set -eu
umask 077
cat >/tmp/s3.json <<JSON
{"identities": [{"name": "pockfarm",
  "credentials": [{"accessKey": "pockfarm", "secretKey": "$STORAGE_SECRET"}],
  "actions": ["Admin", "Read", "List", "Tagging", "Write"]}]}
JSON
exec weed server -dir=/data -ip.bind=0.0.0.0 -s3 -s3.port=8333 -s3.config=/tmp/s3.json
