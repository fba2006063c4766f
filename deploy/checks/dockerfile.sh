#!/bin/sh
# hadolint finds nothing in the Dockerfile.
set -eu
hadolint --failure-threshold style deploy/container/Dockerfile
