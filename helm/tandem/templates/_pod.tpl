{{- /* Pod Security `restricted`: what every container gets, with an operator's own laid over it. */}}
{{- define "tandem.securityContext" -}}
{{- $base := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true
  "capabilities" (dict "drop" (list "ALL")) }}
{{- mergeOverwrite $base (deepCopy .) | toYaml }}
{{- end }}

{{- /* The same of a pod: (list $ .Values.tests.podSecurityContext). OpenShift chooses users and groups itself. */}}
{{- define "tandem.podSecurityContext" -}}
{{- $base := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if not (index . 0).Values.global.openshift }}
{{- $base = merge $base (dict "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001
  "fsGroupChangePolicy" "OnRootMismatch") }}
{{- end }}
{{- mergeOverwrite $base (deepCopy (index . 1)) | toYaml }}
{{- end }}

{{- /* How and where a pod runs: (list $ .Values.router). What is empty there is as in `global`. */}}
{{- define "tandem.placement" -}}
{{- $root := index . 0 }}
{{- $values := index . 1 -}}
enableServiceLinks: false
{{- with $root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "schedulerName"
  "dnsPolicy" "dnsConfig" "hostAliases" }}
{{- with default (get $root.Values.global $key) (get $values $key) }}
{{ $key }}: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The same of a pod that is no component's, and who it runs as: (list $ .Values.tests). */}}
{{- define "tandem.placedPodSpec" -}}
{{ include "tandem.placement" . }}
securityContext:
  {{- include "tandem.podSecurityContext" (list (index . 0) (index . 1).podSecurityContext) | nindent 2 }}
{{- end }}

{{- /* A quantity of Kubernetes as a number. */}}
{{- define "tandem.quantity" -}}
{{- $units := dict "" 1.0 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- $text := toString . }}
{{- $number := regexFind "^[0-9.]+([eE][0-9]+)?" $text }}
{{- mulf (float64 $number) (get $units (trimPrefix $number $text)) }}
{{- end }}

{{- /* The labels of a pod: (list $ "router" .Values.router). */}}
{{- define "tandem.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/part-of: tandem
{{- with merge (dict) (index . 2).podLabels $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The seconds a pod has to end: (list $ "router"). */}}
{{- define "tandem.gracePeriod" -}}
{{- $drain := (index (index . 0).Values (index . 1)).drain }}
{{- add $drain.preStopSeconds $drain.timeoutSeconds $drain.teardownSeconds }}
{{- end }}

{{- /* The head of a pod template: (list $ "router"). What it carries is its revision's, whatever the release becomes. */}}
{{- define "tandem.podMetadata" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $values := index $root.Values $component }}
{{- $rdma := include "tandem.rdma" . | fromYaml }}
{{- $own := include "tandem.carried" . | fromJson }}
{{- if $root.Values.monitoring.scrapeAnnotations }}
{{- $own = merge $own (dict "prometheus.io/scrape" "true" "prometheus.io/path" "/metrics"
  "prometheus.io/port" (include "tandem.metricsPort" $component)) }}
{{- end }}
{{- if and $rdma.enabled $rdma.networks }}
{{- $_ := set $own "k8s.v1.cni.cncf.io/networks" $rdma.networks }}
{{- end -}}
labels:
  {{- include "tandem.podLabels" (list $root $component $values) | nindent 2 }}
annotations:
  {{- merge (dict) $values.podAnnotations $root.Values.commonAnnotations $own | toYaml | nindent 2 }}
{{- end }}

{{- define "tandem.metricsPort" -}}
{{- get (dict "frontend" "8001" "router" "7001" "prefill" "7101" "decode" "7201" "worker" "7301" "tls" "7401") . }}
{{- end }}

{{- /* What every pod says beside its containers and volumes: (list $ "router"). */}}
{{- define "tandem.podSpec" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) }}
{{- $rdma := include "tandem.rdma" . | fromYaml }}
{{- $user := dict }}
{{- if and $rdma.enabled $rdma.ipcLock }}
{{- $user = dict "runAsNonRoot" false "runAsUser" 0 "runAsGroup" 0 }}
{{- end -}}
serviceAccountName: {{ include "tandem.serviceAccountName" . }}
automountServiceAccountToken: {{ and (eq (index . 1) "router") (eq $root.Values.router.discovery "kubernetes") }}
terminationGracePeriodSeconds: {{ include "tandem.gracePeriod" . }}
securityContext:
  {{- include "tandem.podSecurityContext" (list $root (mergeOverwrite $user (deepCopy $values.podSecurityContext))) | nindent 2 }}
{{ include "tandem.placement" (list $root $values) }}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- $own := dict "labelSelector" (dict "matchLabels" (include "tandem.selectorLabels" . | fromYaml)) }}
{{- range $values.topologySpreadConstraints }}
  {{- list (merge (dict) . $own) | toYaml | nindent 2 }}
{{- end }}
{{- end }}
{{- if and $rdma.enabled $rdma.hostNetwork }}
hostNetwork: true
{{- if not $values.dnsPolicy }}
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- end }}
{{- end }}

{{- /* How long a component may take to start, s: (list $ "router"). A worker that loads a model gives up by itself before. */}}
{{- define "tandem.startSeconds" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $seconds := (index $root.Values $component).startupSeconds }}
{{- if and (has $component (list "prefill" "decode" "worker")) (ne (include "tandem.engine" $root) "sim") }}
{{- $options := include "tandem.engineOptions" . | fromYaml }}
{{- $seconds = add $options.load_seconds (default 1800 $options.warm_up_seconds) 60 }}
{{- end }}
{{- int $seconds }}
{{- end }}

{{- /* How long a worker may take to start, s: the longest of those that there are. */}}
{{- define "tandem.longestStart" -}}
{{- $longest := 0 }}
{{- range include "tandem.workers" . | fromJsonArray }}
{{- $longest = max $longest (include "tandem.startSeconds" (list $ .) | int) }}
{{- end }}
{{- $longest }}
{{- end }}

{{- /* Of a component's own container: (list $ "router"). `started` says that it has loaded what it needs, `live` that the process works, `ready` that it takes
requests; only `ready` changes when a peer is missing or a drain begins. */}}
{{- define "tandem.probes" -}}
{{- $values := index (index . 0).Values (index . 1) }}
{{- $live := dict "httpGet" (dict "path" "/live" "port" "metrics") "timeoutSeconds" 5 }}
{{- $starts := dict "httpGet" (dict "path" "/started" "port" "metrics") "timeoutSeconds" 5 "periodSeconds" 2
  "failureThreshold" (div (add (include "tandem.startSeconds" . | int) 1) 2) }}
{{- /* What hangs has nothing to drain. */}}
{{- $hangs := dict "periodSeconds" 10 "failureThreshold" 6 "terminationGracePeriodSeconds" 30 }}
{{- $ready := dict "httpGet" (dict "path" "/ready" "port" "metrics") "timeoutSeconds" 3 "periodSeconds" 2
  "failureThreshold" 3 -}}
startupProbe:
  {{- merge (dict) $values.probes.startup $starts | toYaml | nindent 2 }}
livenessProbe:
  {{- merge (dict) $values.probes.liveness $hangs $live | toYaml | nindent 2 }}
readinessProbe:
  {{- merge (dict) $values.probes.readiness $ready | toYaml | nindent 2 }}
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
  downwardAPI:
    items:
      - {path: tandem.yaml, fieldRef: {fieldPath: "metadata.annotations['tandem/settings']"}}
- name: tmp
  emptyDir: {{ with $values.tmp.sizeLimit }}{sizeLimit: {{ . }}}{{ else }}{}{{ end }}
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
