{{- /* Pod Security `restricted`: what every container gets, with an operator's own laid over it. */}}
{{- define "tandem.securityContext" -}}
{{- $base := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true
  "capabilities" (dict "drop" (list "ALL")) }}
{{- mergeOverwrite $base (deepCopy .) | toYaml }}
{{- end }}

{{- define "tandem.podSecurityContext" -}}
{{- $base := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001
  "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- mergeOverwrite $base (deepCopy .) | toYaml }}
{{- end }}

{{- /* The seconds a pod has to end: (list $ "router"). */}}
{{- define "tandem.gracePeriod" -}}
{{- $drain := (index (index . 0).Values (index . 1)).drain }}
{{- add $drain.preStopSeconds $drain.timeoutSeconds $drain.teardownSeconds }}
{{- end }}

{{- /* The head of a pod template: (list $ "router"). A change of settings makes new pods. */}}
{{- define "tandem.podMetadata" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $values := index $root.Values $component -}}
labels:
  {{- include "tandem.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/part-of: tandem
  {{- with merge (dict) $values.podLabels $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ include (printf "tandem.settings.%s" $component) $root | sha256sum }}
  {{- if and (has $component (list "prefill" "decode")) $root.Values.code.files }}
  checksum/code: {{ toYaml $root.Values.code.files | sha256sum }}
  {{- end }}
  {{- if $root.Values.monitoring.scrapeAnnotations }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ include "tandem.metricsPort" $component | quote }}
  prometheus.io/path: /metrics
  {{- end }}
  {{- with merge (dict) $values.podAnnotations $root.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "tandem.metricsPort" -}}
{{- get (dict "frontend" "8001" "router" "7001" "prefill" "7101" "decode" "7201") . }}
{{- end }}

{{- /* What every pod says beside its containers and volumes: (list $ "router"). */}}
{{- define "tandem.podSpec" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) }}
{{- $rdma := $root.Values.kvTransfer.rdma }}
{{- $user := dict }}
{{- if and $rdma.enabled $rdma.ipcLock (has (index . 1) (list "prefill" "decode")) }}
{{- $user = dict "runAsNonRoot" false "runAsUser" 0 "runAsGroup" 0 }}
{{- end -}}
serviceAccountName: {{ include "tandem.serviceAccountName" . }}
automountServiceAccountToken: {{ and (eq (index . 1) "router") (eq $root.Values.router.discovery "kubernetes") }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "tandem.gracePeriod" . }}
securityContext:
  {{- include "tandem.podSecurityContext" (mergeOverwrite $user (deepCopy $values.podSecurityContext)) | nindent 2 }}
{{- with $root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "schedulerName" }}
{{- with get $values $key }}
{{ $key }}: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- $own := dict "labelSelector" (dict "matchLabels" (include "tandem.selectorLabels" . | fromYaml)) }}
{{- range $values.topologySpreadConstraints }}
  {{- list (merge (dict) . $own) | toYaml | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of a component's own container: (list $ "router"). `live` says that the process works, `ready` that it takes
requests; only `ready` changes when a peer is missing or a drain begins. */}}
{{- define "tandem.probes" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) -}}
startupProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: {{ div (add $values.startupSeconds 1) 2 }}
livenessProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
  # What hangs has nothing to drain.
  terminationGracePeriodSeconds: 30
readinessProbe:
  httpGet: {path: /ready, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 3
{{- with $values.drain.preStopSeconds }}
lifecycle:
  preStop: {sleep: {seconds: {{ . }}}}
{{- end }}
{{- end }}

{{- /* Environment of a component's own container: (list $ "router"). */}}
{{- define "tandem.env" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
- {name: TANDEM_CONFIG, value: /etc/tandem/tandem.yaml}
- {name: HOME, value: /tmp}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Volumes and mounts of every component: (list $ "router"). */}}
{{- define "tandem.volumes" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) -}}
- name: settings
  configMap: {name: {{ include "tandem.component" . }}}
- name: tmp
  emptyDir: {}
{{- if $root.Values.tls.enabled }}
- {{ include "tandem.tlsVolume" . | nindent 2 | trim }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tandem.volumeMounts" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) -}}
- {name: settings, mountPath: /etc/tandem, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if $root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/tandem-tls, readOnly: true}
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
