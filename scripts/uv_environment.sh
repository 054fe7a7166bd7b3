# Sourced by the other scripts: make uv see the index and certificates that pip on this machine is configured with.
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}"
# A bare machine may have no certificates of its own; uv then uses those it carries.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"; fi
if [ -n "${PIP_CERT:-}" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE="$PIP_CERT"; fi
if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_DEFAULT_INDEX:-}" ]; then export UV_DEFAULT_INDEX="$PIP_INDEX_URL"; fi
