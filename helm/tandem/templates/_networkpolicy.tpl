{{- /* A peer of a NetworkPolicy: the pods of a component, (list $ "router"). */}}
{{- define "tandem.peer" -}}
- podSelector:
    matchLabels:
      {{- include "tandem.selectorLabels" . | nindent 6 }}
{{- end }}

{{- /* Who may read metrics: (list $). `helm test` counts KV bytes there. The kubelet's probes pass by every policy. */}}
{{- define "tandem.metricsIngress" -}}
- ports: [{port: metrics}]
  from:
    {{- with (index . 0).Values.networkPolicy.metricsFrom }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "tandem.peer" (list (index . 0) "test") | nindent 4 }}
{{- end }}

{{- /* The Kubernetes API. */}}
{{- define "tandem.apiEgress" -}}
{{- with .Values.networkPolicy.egress }}
{{- if .apiPorts }}
- ports:
    {{- range .apiPorts }}
    - {port: {{ . }}}
    {{- end }}
  {{- with .apiCIDRs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What every component may reach beside its peers. */}}
{{- define "tandem.commonEgress" -}}
{{- $policy := .Values.networkPolicy }}
{{- /* A rule without ports would open all of them. */}}
{{- with $policy.egress.dnsPorts -}}
- ports:
    {{- range . }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- with .Values.tracing.otlpEndpoint }}
- ports: [{port: {{ include "tandem.urlPort" . }}}]
{{- end }}
{{- with $policy.egress.extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The port of a URL. */}}
{{- define "tandem.urlPort" -}}
{{- $url := urlParse . }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- default (get (dict "http" "80" "https" "443" "grpc" "4317" "grpcs" "4317") $url.scheme) $port }}
{{- end }}

{{- /* The hub or bucket of the model, or of its LoRA adapters, for the download in an init container. */}}
{{- define "tandem.hubEgress" -}}
{{- if or (include "tandem.isRemote" .) (include "tandem.fetchesLora" .) }}{{ include "tandem.hubPort" . }}{{ end }}
{{- end }}

{{- define "tandem.hubPort" -}}
- ports: [{port: {{ include "tandem.urlPort" (default "https://" .Values.model.hubEndpoint) }}}]
{{- end }}
