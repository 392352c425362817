{{/* The names of what the chart makes. */}}
{{- define "fetchgate.name" -}}
{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "fetchgate.injector" -}}
{{ include "fetchgate.name" . }}-injector
{{- end }}

{{- define "fetchgate.selector" -}}
app.kubernetes.io/name: {{ include (ternary "fetchgate.injector" "fetchgate.name" .Values.injector.enabled) . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Nobody can guess where the brokers are. */}}
{{- define "fetchgate.bootstrap" -}}
{{ required "bootstrap is not set: give the brokers' addresses, such as --set bootstrap=kafka:9092" .Values.bootstrap }}
{{- end }}

{{- define "fetchgate.labels" -}}
{{ include "fetchgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* An image, by digest if there is one: a list of the chart's root and of the image's values. */}}
{{- define "fetchgate.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/*
The MiB that are requested: the sum of docs/users/run.md (Memory), rounded up to 32. That is the process,
what it keeps of clients' sessions and of leaders, one response of --max-fetch-bytes (50 MiB without), five quarters
of --max-inflight-bytes, and 32 KiB for each of --max-connections.
*/}}
{{- define "fetchgate.memory" -}}
{{- $response := int64 .Values.maxFetchBytes | default 52428800 }}
{{- $connections := mul 32768 (int64 .Values.maxConnections) }}
{{- $worst := add 42000000 24000000 $response (div (mul 5 (int64 .Values.maxInflightBytes)) 4) $connections }}
{{- mul 32 (div (add $worst 33554431) 33554432) }}
{{- end }}

{{/*
The admin endpoint. 9464 is the default port of OpenTelemetry's exporter for Prometheus too: nobody looks which ports the
containers of a pod use before a gateway is injected.
*/}}
{{- define "fetchgate.admin" -}}
127.0.0.1:{{ ternary 19091 9464 .Values.injector.enabled }}
{{- end }}

{{/* The gateway's container: a native sidecar, first among the init containers. */}}
{{- define "fetchgate.sidecar" -}}
- name: fetchgate
  image: {{ include "fetchgate.image" (list . .Values.image) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  {{- if eq .Values.mode "tproxy" }}
  # Kubernetes gives added capabilities to root alone: setpriv goes on as 61092 with the one that is needed.
  command:
    - setpriv
    - --reuid=61092
    - --regid=61092
    - --clear-groups
    - --inh-caps=-all,+net_raw
    - --ambient-caps=-all,+net_raw
    - --bounding-set=-all,+net_raw
    - fetchgate
  {{- end }}
  args: [proxy]
  env:
    {{- if eq .Values.mode "explicit" }}
    {{- if or .Values.bootstrap (not .Values.injector.enabled) }}
    - name: FETCHGATE_BOOTSTRAP
      value: {{ include "fetchgate.bootstrap" . | quote }}
    {{- end }}
    {{- else }}
    - name: FETCHGATE_TRANSPARENT
      value: {{ .Values.mode }}
    {{- end }}
    - name: FETCHGATE_LISTEN
      value: 127.0.0.1:19092
    {{- if .Values.injector.enabled }}
    - name: FETCHGATE_ADMIN
      value: {{ include "fetchgate.admin" . }}
    {{- end }}
    # For the kubelet and Prometheus, from outside the pod. The admin endpoint stays at loopback.
    - name: FETCHGATE_METRICS
      value: 0.0.0.0:9465
    - name: FETCHGATE_DRAIN_TIMEOUT
      value: "20"
    - name: FETCHGATE_MAX_CONNECTIONS
      value: {{ int64 .Values.maxConnections | quote }}
    - name: FETCHGATE_MAX_FETCH_BYTES
      value: {{ int64 .Values.maxFetchBytes | quote }}
    - name: FETCHGATE_MAX_INFLIGHT_BYTES
      value: {{ int64 .Values.maxInflightBytes | quote }}
    {{- if .Values.config }}
    - name: FETCHGATE_CONFIG
      value: /etc/fetchgate/fetchgate.toml
    {{- end }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: gate-metrics
      containerPort: 9465
      protocol: TCP
  startupProbe:
    httpGet:
      path: /livez
      port: gate-metrics
    periodSeconds: 1
    failureThreshold: 30
  livenessProbe:
    httpGet:
      path: /livez
      port: gate-metrics
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet:
      path: /readyz
      port: gate-metrics
    periodSeconds: 5
    timeoutSeconds: 5
  lifecycle:
    preStop:
      exec:
        command: [fetchgate-wait-idle, "{{ include "fetchgate.admin" . }}", "30"]
  resources:
    {{- if .Values.resources }}
    {{- toYaml .Values.resources | nindent 4 }}
    {{- else }}
    requests:
      cpu: 50m
      memory: {{ include "fetchgate.memory" . }}Mi
    limits:
      memory: {{ mul 2 (int (include "fetchgate.memory" .)) }}Mi
    {{- end }}
  securityContext:
    {{- if eq .Values.mode "tproxy" }}
    runAsNonRoot: false
    runAsUser: 0
    runAsGroup: 0
    {{- else }}
    runAsNonRoot: true
    runAsUser: 61092
    runAsGroup: 61092
    {{- end }}
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      {{- if eq .Values.mode "tproxy" }}
      add: [NET_RAW, SETUID, SETGID, SETPCAP]
      {{- end }}
    {{- if .Values.injector.enabled }}
    # The pod may have it for its own containers only; the Pod Security level "restricted" requires it for all.
    seccompProfile:
      type: RuntimeDefault
    {{- end }}
  {{- if or .Values.config .Values.extraVolumeMounts }}
  volumeMounts:
    {{- if .Values.config }}
    - name: fetchgate-config
      mountPath: /etc/fetchgate
      readOnly: true
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}

{{/* After the gateway: until the rules are added, connections go directly to the brokers. */}}
{{- define "fetchgate.rules" -}}
- name: fetchgate-rules
  image: {{ include "fetchgate.image" (list . .Values.rulesImage) }}
  imagePullPolicy: {{ .Values.rulesImage.pullPolicy }}
  {{- if .Values.failOpen }}
  restartPolicy: Always
  {{- end }}
  args: [{{ ternary "watch" "up" .Values.failOpen }}, --mode, {{ .Values.mode }}, --ports, {{ .Values.brokerPorts | quote }}, --to, "19092", --user, "61092"]
  {{- if .Values.failOpen }}
  # The client starts when the rules are there.
  startupProbe:
    exec:
      command: [transparent.sh, show]
    periodSeconds: 1
    failureThreshold: 60
  {{- end }}
  resources:
    requests:
      cpu: 10m
      memory: 16Mi
    limits:
      memory: 64Mi
  securityContext:
    runAsUser: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [NET_ADMIN]
{{- end }}
