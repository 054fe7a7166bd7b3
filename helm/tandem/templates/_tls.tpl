{{- /* The name below which certificates bear roles: of this installation alone, so that two under one issuer stay two. */}}
{{- define "tandem.peerName" -}}
{{- default (printf "%s.%s" (include "tandem.fullname" .) .Release.Namespace) .Values.tls.peerName }}
{{- end }}

{{- /* Whether the chart's own controller makes the certificates; empty: no. */}}
{{- define "tandem.tlsController" -}}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) (not .Values.tls.certManager.enabled) }}yes{{ end }}
{{- end }}

{{- /* What a component mounts: (list $ "router"). Its own certificate alone, whichever Secret it lies in. */}}
{{- define "tandem.tlsVolume" -}}
{{- $root := index . 0 }}
{{- $role := index . 1 -}}
name: tls
secret:
  defaultMode: 0440
  {{- if $root.Values.tls.certManager.enabled }}
  secretName: {{ include "tandem.component" . }}-tls
  {{- else }}
  secretName: {{ default (include "tandem.component" (list $root "tls")) $root.Values.tls.existingSecret }}
  items:
    - {key: {{ $role }}.crt, path: tls.crt}
    - {key: {{ $role }}.key, path: tls.key}
    - {key: ca.crt, path: ca.crt}
  {{- end }}
{{- end }}

{{- /* What holds the routers' voucher key: a Secret of the operator's, or the controller's. Empty: there is none. */}}
{{- define "tandem.voucherVolume" -}}
{{- $given := .Values.router.voucherKey }}
{{- if or $given.existingSecret (include "tandem.tlsController" .) -}}
name: voucher-key
secret:
  defaultMode: 0440
  {{- if $given.existingSecret }}
  secretName: {{ $given.existingSecret }}
  items: [{key: {{ $given.key }}, path: voucher.key}]
  {{- else }}
  secretName: {{ include "tandem.component" (list . "tls") }}-voucher
  items: [{key: voucher.key, path: voucher.key}]
  {{- end }}
{{- end }}
{{- end }}
