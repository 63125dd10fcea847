# The image holds the static binary and CA certificates, nothing else: no shell, no user
# database, no package to patch.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X github.com/outbox-cdc/outbox-cdc/internal/cli.version=${VERSION}" \
      -o /outbox-cdc .

FROM scratch
LABEL org.opencontainers.image.title="outbox-cdc" \
      org.opencontainers.image.description="Forwards committed rows of a PostgreSQL outbox table to NATS JetStream" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /outbox-cdc /outbox-cdc
# A number, since there is no /etc/passwd; Kubernetes' runAsNonRoot wants one too.
USER 65532:65532
# Metrics, health and the live page. The default of --http is the loopback address, which
# nobody outside of the container could reach.
ENV OUTBOX_CDC_HTTP=0.0.0.0:9477
EXPOSE 9477
# No HEALTHCHECK: it would need a program inside of the image. Ask /livez and /readyz
# from outside, as deploy/kubernetes does.
ENTRYPOINT ["/outbox-cdc"]
CMD ["start"]
