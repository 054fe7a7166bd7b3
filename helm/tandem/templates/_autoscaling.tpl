{{- /* Metrics of a HorizontalPodAutoscaler, from a component's `autoscaling`. */}}
{{- define "tandem.hpaMetrics" -}}
{{- if .metrics }}{{ toYaml .metrics }}
{{- else -}}
{{- with .targetCPUUtilization }}
- type: Resource
  resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ . }}}}
{{- end }}
{{- with .targetWaitingSequences }}
- type: Pods
  pods: {metric: {name: tandem_worker_waiting_legs}, target: {type: AverageValue, averageValue: {{ . | quote }}}}
{{- end }}
{{- with .targetOpenSequences }}
- type: Pods
  pods: {metric: {name: tandem_worker_open_legs}, target: {type: AverageValue, averageValue: {{ . | quote }}}}
{{- end }}
{{- with .targetKvUse }}
- type: Pods
  pods: {metric: {name: tandem_worker_kv_used_ratio}, target: {type: AverageValue, averageValue: {{ printf "%vm" (mul . 10) | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Triggers of a ScaledObject: (list $ "prefill"). Each sum over pods is divided by the target, so that the result
is a number of pods. */}}
{{- define "tandem.kedaTriggers" -}}
{{- $root := index . 0 }}
{{- $scaling := (index $root.Values (index . 1)).autoscaling }}
{{- $address := $root.Values.monitoring.prometheusAddress }}
{{- $pods := printf `{namespace="%s",pod=~"%s-.+"}` $root.Release.Namespace (include "tandem.component" .) }}
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
{{- end }}
{{- end }}
