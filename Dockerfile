# syntax=docker/dockerfile:1
# docker build -t windlass .
# docker run -v windlass:/data windlass token create --scope admin     # prints the first token, once
# docker run -v windlass:/data -p 7700:7700 windlass

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches stay out of the image; the binary does not.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --package windlass-cli \
    && cp target/release/windlass /windlass \
    && mkdir /data

# The C library, certificates and time zones; no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /windlass /usr/local/bin/windlass
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
WORKDIR /data
VOLUME /data
ENV WINDLASS_DATABASE=sqlite:///data/windlass.db \
    WINDLASS_LISTEN=0.0.0.0:7700 \
    WINDLASS_LOG_FORMAT=json
EXPOSE 7700
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["/usr/local/bin/windlass", "health"]
ENTRYPOINT ["/usr/local/bin/windlass"]
CMD ["serve"]
