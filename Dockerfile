# The hub alone, as an unprivileged user on a root file system that may be read-only: it writes to DATA_DIR
# and to /tmp. Debian 13, whose C library is the one that uWebSockets.js asks for.
ARG BASE=node:24.21.0-trixie-slim

FROM ${BASE} AS dependencies
WORKDIR /app
COPY package.json package-lock.json ./
# Optional ones are Node itself and the embedded PostgreSQL; neither is used in production. Of uWebSockets.js,
# which brings the binaries of every platform and Node, one is kept.
RUN npm ci --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund \
  && node -e 'const fs = require("fs"), own = `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`; \
      const dir = "node_modules/uWebSockets.js/"; \
      fs.statSync(dir + own); \
      for (const file of fs.readdirSync(dir)) if (file.endsWith(".node") && file !== own) fs.rmSync(dir + file)'

FROM ${BASE}
LABEL org.opencontainers.image.title="Muster" \
      org.opencontainers.image.description="Device-management hub" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV NODE_ENV=production \
    HOST=0.0.0.0 \
    PORT=8080 \
    DATA_DIR=/data \
    XDG_CACHE_HOME=/tmp
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin muster \
  && install -d -o muster -g muster -m 0700 /data
WORKDIR /app
COPY --from=dependencies /app/node_modules node_modules
COPY package.json LICENSE ./
COPY migrations migrations
COPY pages pages
COPY scripts scripts
COPY src src
COPY workers workers
USER 10001:10001
VOLUME /data
EXPOSE 8080
# Ready, not only alive: a rolling restart goes on with the next hub when this one takes requests.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT}/health/ready`).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
STOPSIGNAL SIGTERM
# As `npm start` does; why, is told in docs/adr/0023.
CMD ["node", "--max-semi-space-size=16", "src/start.js"]
