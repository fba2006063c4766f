{{- define "tenora.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "tenora.selector" -}}
app.kubernetes.io/name: tenora
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tenora.labels" -}}
{{ include "tenora.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tenora.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tenora.terminationGrace" -}}
{{ add (int .Values.drainSeconds) (int .Values.graceSeconds) 30 }}
{{- end }}

{{/* Fields that every pod has. */}}
{{- define "tenora.podSecurity" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Fields that every container has. The entry point is the image's, tini with tenora, so containers only set args. */}}
{{- define "tenora.container" -}}
image: {{ include "tenora.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Environment of every container: settings, and the keys of Secrets in `keys`. HOME and TENORA_HOME are the image's. */}}
{{- define "tenora.environment" -}}
- {name: TENORA_DRAIN_SECONDS, value: {{ .root.Values.drainSeconds | quote }}}
- {name: TENORA_GRACE_SECONDS, value: {{ .root.Values.graceSeconds | quote }}}
{{- range $name, $value := .root.Values.settings }}
{{- if ne $value "" }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- range $name, $key := .keys }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $.root.Values.existingSecret }}, key: {{ $key }}}}
{{- end }}
{{- range $name, $key := .root.Values.optionalSecretKeys }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $.root.Values.existingSecret }}, key: {{ $key }}, optional: true}}
{{- end }}
{{- end }}

{{- define "tenora.rayHead" -}}
{{ include "tenora.name" . }}-engines-head-svc.{{ .Release.Namespace }}.svc.cluster.local
{{- end }}

{{/* Token, TLS, no reports, and the priority of replicas, for every process of Ray. */}}
{{- define "tenora.rayEnvironment" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.fleet.tokenSecret }}, key: auth_token}}
- {name: RAY_USE_TLS, value: "1"}
- {name: RAY_TLS_SERVER_CERT, value: /etc/ray/tls/tls.crt}
- {name: RAY_TLS_SERVER_KEY, value: /etc/ray/tls/tls.key}
- {name: RAY_TLS_CA_CERT, value: /etc/ray/authority/tls.crt}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_worker_niceness, value: "0"}
{{- end }}

{{/* Mounts of a container that runs processes of Ray. Only the certificate's container sees the authority's key. */}}
{{- define "tenora.rayMounts" -}}
- {name: tls, mountPath: /etc/ray/tls, readOnly: true}
- {name: authority-certificate, mountPath: /etc/ray/authority, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- end }}

{{- define "tenora.rayVolumes" -}}
- name: tls
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: authority
  secret: {secretName: {{ .Values.fleet.authoritySecret }}}
- name: authority-certificate
  secret:
    secretName: {{ .Values.fleet.authoritySecret }}
    items: [{key: tls.crt, path: tls.crt}]
{{- end }}

{{/* Container that issues the pod's certificate. KubeRay sets FQ_RAY_IP in pods of the cluster. */}}
{{- define "tenora.certificate" -}}
name: certificate
{{ include "tenora.container" .root }}
args:
  - engines
  - certificate
  - --authority=/etc/ray/authority
  - --folder=/etc/ray/tls
  - --days=3650
  - --address=$(POD_IP)
  {{- with .names }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - {name: TENORA_HOME, value: /tmp}
resources:
  requests: {cpu: 100m, memory: 256Mi, ephemeral-storage: 16Mi}
  limits: {memory: 512Mi, ephemeral-storage: 64Mi}
volumeMounts:
  - {name: tls, mountPath: /etc/ray/tls}
  - {name: authority, mountPath: /etc/ray/authority, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "tenora.check" -}}
{{- $shared := or (gt (int .Values.replicas) 1) .Values.keda.enabled .Values.fleet.enabled -}}
{{- if and $shared (not (hasPrefix "s3://" (get .Values.settings "TENORA_STORE_URL"))) -}}
{{- fail "Several servers, KEDA and a fleet need a shared store: set settings.TENORA_STORE_URL to s3://bucket/prefix." -}}
{{- end -}}
{{- if and .Values.fleet.enabled (gt (int .Values.gpus) 0) -}}
{{- fail "The servers of a fleet have no engine: set gpus to 0, and fleet.gpus for the replicas." -}}
{{- end -}}
{{- if gt (int .Values.fleet.minReplicas) (int .Values.fleet.maxReplicas) -}}
{{- fail "fleet.minReplicas is larger than fleet.maxReplicas." -}}
{{- end -}}
{{- if gt (int .Values.keda.minReplicas) (int .Values.keda.maxReplicas) -}}
{{- fail "keda.minReplicas is larger than keda.maxReplicas." -}}
{{- end -}}
{{- end }}
