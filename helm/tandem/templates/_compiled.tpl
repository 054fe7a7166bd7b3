{{- /* The claim that keeps what a component's engine compiles: (list $ "prefill"); empty: none. */}}
{{- define "tandem.compileCacheClaim" -}}
{{- $cache := (index (index . 0).Values (index . 1)).compileCache }}
{{- if $cache.existingClaim }}{{ $cache.existingClaim }}
{{- else if $cache.size }}{{ include "tandem.component" . }}-compile-cache
{{- end }}
{{- end }}

{{- /* The same where the chart makes it. */}}
{{- define "tandem.compileCache" -}}
{{- $cache := (index (index . 0).Values (index . 1)).compileCache }}
{{- if $cache.size -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "tandem.metadata" (list (index . 0) (index . 1) "-compile-cache") | nindent 2 }}
spec:
  accessModes:
    {{- toYaml $cache.accessModes | nindent 4 }}
  {{- with $cache.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ $cache.size }}}
{{- end }}
{{- end }}
