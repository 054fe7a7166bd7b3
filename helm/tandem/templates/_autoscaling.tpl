{{- /* Who decides how many pods a component has. */}}

{{- /* The number that the chart sets: (list $ "router"); empty: none, as others scale it. */}}
{{- define "tandem.replicas" -}}
{{- $values := index (index . 0).Values (index . 1) }}
{{- if and (eq $values.autoscaling.type "none") (not (kindIs "invalid" $values.replicas)) }}
{{- $values.replicas }}
{{- else }}
{{- $workload := include "tandem.workloadRef" . | fromYaml }}
{{- include "tandem.heldReplicas" (lookup $workload.apiVersion $workload.kind (index . 0).Release.Namespace $workload.name) }}
{{- end }}
{{- end }}

{{- /* Of a live workload that others are to scale: its number, where leaving it out would set it to 1, and else
nothing. A field that the manifest before had is deleted, unless who applies on the server's side shares it with another
owner. Where the cluster is not asked, nothing is live. */}}
{{- define "tandem.heldReplicas" -}}
{{- $applier := "" }}
{{- $owners := list }}
{{- range dig "metadata" "managedFields" (list) . }}
{{- if and (eq .operation "Apply") (dig "fieldsV1" "f:metadata" "f:labels" "f:helm.sh/chart" "" . | kindIs "map") }}{{ $applier = .manager }}{{ end }}
{{- if dig "fieldsV1" "f:spec" "f:replicas" "" . | kindIs "map" }}{{ $owners = append $owners .manager }}{{ end }}
{{- end }}
{{- $leftOut := dig "metadata" "annotations" "tandem/replicas" "" . }}
{{- $shared := and $applier (without $owners $applier) }}
{{- if not (or (empty .) $leftOut $shared) }}{{ .spec.replicas | int }}{{ end }}
{{- end }}

{{- /* The head of a component's workload: (list $ "router"). It says where the number is left out: see above. */}}
{{- define "tandem.workloadMetadata" -}}
{{- $annotations := (index (index . 0).Values (index . 1)).workload.annotations }}
{{- if not (include "tandem.replicas" .) }}
{{- $annotations = merge (dict "tandem/replicas" "left to others") $annotations }}
{{- end }}
{{- include "tandem.metadata" (list (index . 0) (index . 1) "" $annotations) }}
{{- end }}

{{- /* Metrics of a HorizontalPodAutoscaler, from a component's `autoscaling`; of a phase where it has several. */}}
{{- define "tandem.hpaMetrics" -}}
{{- $of := "" }}
{{- with .phase }}{{ $of = printf ", selector: {matchLabels: {phase: %s}}" . }}{{ end }}
{{- if .metrics }}{{ toYaml .metrics }}
{{- else -}}
{{- with .targetCPUUtilization }}
- type: Resource
  resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ . }}}}
{{- end }}
{{- with .targetWaitingSequences }}
- type: Pods
  pods: {metric: {name: tandem_worker_waiting_legs{{ $of }}}, target: {type: AverageValue, averageValue: {{ . | quote }}}}
{{- end }}
{{- with .targetOpenSequences }}
- type: Pods
  pods: {metric: {name: tandem_worker_open_legs{{ $of }}}, target: {type: AverageValue, averageValue: {{ . | quote }}}}
{{- end }}
{{- with .targetKvUse }}
- type: Pods
  pods: {metric: {name: tandem_worker_kv_used_ratio{{ $of }}}, target: {type: AverageValue, averageValue: {{ printf "%vm" (mul . 10) | quote }}}}
{{- end }}
{{- with .targetWaitingBodies }}
- type: Pods
  pods: {metric: {name: tandem_frontend_waiting_bodies}, target: {type: AverageValue, averageValue: {{ . | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Triggers of a ScaledObject: (list $ "prefill"). Each sum over pods is divided by the target, so that the result
is a number of pods. */}}
{{- define "tandem.kedaTriggers" -}}
{{- $root := index . 0 }}
{{- $scaling := (index $root.Values (index . 1)).autoscaling }}
{{- $address := $root.Values.monitoring.prometheusAddress }}
{{- /* An aggregated worker says the same of its engine in both phases. */}}
{{- $phase := ternary ",phase=\"decode\"" "" (eq (index . 1) "worker") }}
{{- $pods := printf `{namespace="%s",pod=~"%s-.+"%s}` $root.Release.Namespace (include "tandem.component" .) $phase }}
{{- if $scaling.triggers }}{{ toYaml $scaling.triggers }}
{{- else }}
{{- if not $scaling.minReplicas }}
{{- $frontends := printf `{namespace="%s",pod=~"%s-.+"}` $root.Release.Namespace (include "tandem.component" (list $root "frontend")) }}
- type: prometheus
  metadata:
    serverAddress: {{ $address }}
    # One pod while a request is open at a frontend, waiting ones among them, or was a moment ago.
    query: {{ printf "clamp_max(sum(max_over_time(tandem_frontend_open_requests%s[2m])), 1)" $frontends | squote }}
    threshold: "1"
{{- end }}
{{- with $scaling.targetCPUUtilization }}
- type: cpu
  metricType: Utilization
  metadata: {value: {{ . | quote }}}
{{- end }}
{{- with $scaling.targetWaitingSequences }}
- type: prometheus
  metadata:
    serverAddress: {{ $address }}
    query: {{ printf "sum(tandem_worker_waiting_legs%s)" $pods | squote }}
    threshold: {{ . | quote }}
{{- end }}
{{- with $scaling.targetOpenSequences }}
- type: prometheus
  metadata:
    serverAddress: {{ $address }}
    query: {{ printf "sum(tandem_worker_open_legs%s)" $pods | squote }}
    threshold: {{ . | quote }}
{{- end }}
{{- with $scaling.targetKvUse }}
- type: prometheus
  metadata:
    serverAddress: {{ $address }}
    query: {{ printf "100 * sum(tandem_worker_kv_used_ratio%s)" $pods | squote }}
    threshold: {{ . | quote }}
{{- end }}
{{- with $scaling.targetWaitingBodies }}
- type: prometheus
  metadata:
    serverAddress: {{ $address }}
    query: {{ printf "sum(tandem_frontend_waiting_bodies%s)" $pods | squote }}
    threshold: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
