# docker build -t fathom . && docker run -p 127.0.0.1:8080:8080 -v "$PWD/models:/models:ro" fathom
FROM debian:bookworm-slim AS build
COPY . /src
RUN /src/tools/container_build.sh build /opt/fathom

FROM debian:bookworm-slim
COPY --from=build /opt/fathom /usr/local
RUN /usr/local/share/fathom/container_build.sh run /usr/local
USER fathom
WORKDIR /home/fathom
EXPOSE 8080
ENTRYPOINT ["fathom"]
CMD ["serve", "-m", "builtin", "--host", "0.0.0.0", "--port", "8080"]
